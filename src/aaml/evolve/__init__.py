"""The search for formulas: genetic programming over features, evaluated by compiled episodes."""
