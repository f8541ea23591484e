"""The model held against published figures: what stands in the tables of docs/published.md."""
