"""Where the rollouts go: the planners of TRACE, and the arms that are compared."""
