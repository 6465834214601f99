"""Configuration files of every door: read with positions, judged by models, followed as they change."""
