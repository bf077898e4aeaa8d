"""Images that no person labelled: hidden labels, unlabelled files, a teacher's labels, and batches of both kinds."""
