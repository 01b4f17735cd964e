"""Where prompts come from."""

from components.datasets.store import PROMPT_SCHEMA, Prompts, load_prompts, prepare

__all__ = ["PROMPT_SCHEMA", "Prompts", "load_prompts", "prepare"]
