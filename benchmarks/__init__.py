"""Speed, as ratios: ``make bench``. Each table comes from one run, its ways interleaved."""
