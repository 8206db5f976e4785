"""The leaderboard: a fixed protocol, result files that name what made them, and the tables drawn from such files."""
