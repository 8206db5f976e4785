"""The page to look at runs (`aaml lab`): replays of runs, decisions taken apart, curves, comparisons."""
