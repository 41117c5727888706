"""The ways to compute attention. `heedful.nn.attend` picks among them; all equal `reference`."""
