"""When waiting jobs will start: the live policies run forward over drawn run times."""
