"""The run store: one suite for every implementation, and what only Redis can get wrong."""
