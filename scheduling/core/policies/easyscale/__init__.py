"""EasyScale (SC '23): elastic training with a fixed number of logical workers."""
