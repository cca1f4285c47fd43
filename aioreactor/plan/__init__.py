"""What must happen: the checked, compiled graph of a reactor. Pure data, no I/O, no event loop."""
