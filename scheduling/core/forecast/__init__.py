"""Start estimates of waiting jobs: the live policies run forward over drawn run times."""
