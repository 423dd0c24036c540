"""What the engine costs beside the bare driver, and how soon it wakes."""
