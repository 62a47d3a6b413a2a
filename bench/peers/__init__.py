"""The peers of the comparison, one module each; they run in a virtual environment of their own, without chainsched."""
