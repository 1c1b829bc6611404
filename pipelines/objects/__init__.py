"""How a conversion reaches the objects of a store: s3://, gs://, and what Beam knows beside them."""
