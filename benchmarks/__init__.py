"""Speed, measured as ratios in turns in one process, behind the correctness gate."""
