"""The parameters of a run: read from files, composed of the chosen sections, validated before anything starts."""
