"""The local machine as a scheduler (`--site local`): one supervisor process per job."""
