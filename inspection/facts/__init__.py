"""What is known of a data set, worked out once for text and pages."""
