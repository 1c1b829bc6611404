"""Access to the objects of a store: s3://, gs://, and what else Beam knows."""
