"""The policy: its checkpoints and rollouts, who samples (engines), who learns (trainers)."""
