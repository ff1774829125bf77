"""Functions on ranks: `run` and `Wrapper` send a call through a supervisor's process, and bring its values back."""
