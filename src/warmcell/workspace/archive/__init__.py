"""Archives that somebody else made: strict readers, and an unpacker that writes all or nothing."""
