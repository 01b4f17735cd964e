"""Success predictors: the chance of success at prompts and prefixes."""
