"""ElasticFlow (ASPLOS '23): deadlines guaranteed at admission by elastic shares."""
