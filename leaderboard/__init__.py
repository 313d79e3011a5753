"""The leaderboard: store, ranking, charts, app and static report."""
