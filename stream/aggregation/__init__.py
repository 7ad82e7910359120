"""Exact, integer aggregation: what may enter a window, its sum, and the merge of clusters."""
