"""The parameters of a run: read from files, composed of the sections of what is chosen, validated before anything starts."""
