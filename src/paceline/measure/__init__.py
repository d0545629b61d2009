"""What is claimed, measured: `conformance` shows on any model that speculation leaves its text alone."""
