"""The exact step: outputs of a step function, the window over micro-batches, checks, precision, shares by speed."""
