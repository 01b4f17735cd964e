"""The predictor learns, and finds its state again."""

import numpy as np
import pytest
from example import Example, ExampleParams

from components.environments.base import Prompt
from components.errors import UserError
from components.predictor.base import Prefix, believe


def test_beliefs_follow_the_outcomes_and_outlive_the_process(tmp_path):
    root = Prefix.root(Prompt("p0", "who ?", "ann"), [5, 6, 7])
    later = Prefix(root.prompt, [5, 6, 7, 8], [False] * 3 + [True], [float("nan")] * 3 + [-0.1], ("search ann",))
    first, second = (Example(ExampleParams(), tmp_path) for _ in range(2))
    first.fit([root, later], np.array([2.0, 3.0]), np.array([8, 4]), new=2, seed=0)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    belief = believe(second, [root, later])
    assert belief.mean_A.tolist() == pytest.approx([3 / 10, 4 / 6])
    with pytest.raises(UserError, match="missing"):
        second.load(tmp_path / "elsewhere")
