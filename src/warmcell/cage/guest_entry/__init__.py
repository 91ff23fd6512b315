"""The guest's process, from the fork to the first line of guest code: the recipe, the root, the job."""
