"""What a training run left in its folder."""
