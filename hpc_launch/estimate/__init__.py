"""What a training needs before it runs: memory per GPU, time, cost, and which layouts suit it; pure."""
