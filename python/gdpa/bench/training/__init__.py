"""A training step of a block of a recommendation model, on gdpa and on what people use without it."""
