"""Mathematical equality: whether an answer is worth the gold answer, whatever its form.

`docs/rewards.md` says what counts as equal. A text is read whole or not at all: what cannot be read is compared as
text, never by a number found in it. The parts: `text` (signs and tokens), `parse` and `forms` (reading), `evaluate` and
`scalars` (values), `same`, `relations` and `regions` (comparison), `prose` (answers in sentences).
"""

from components.environments.math.equality.judge import equal

__all__ = ["equal"]
