"""A training step of a block of a recommendation model, with gdpa and with other systems."""
