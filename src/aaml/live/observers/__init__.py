"""Those who look on as a scheduler works: what it decides, what becomes of it, what it learns."""
