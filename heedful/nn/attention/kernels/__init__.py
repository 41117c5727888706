"""The ways to compute attention. `attend` picks among them; all equal `reference`."""
