"""ElasticFlow (ASPLOS '23): deadlines promised at admission, and kept by elastic shares."""
