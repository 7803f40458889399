"""What a run means: reports, intervals, comparisons, and pages that show them."""
