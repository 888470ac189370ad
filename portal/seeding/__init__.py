"""Made content that fills an installation to the size at which it is measured."""
