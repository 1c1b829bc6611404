"""How clips are read: video files, animations and folders of frames, each by one file, and which frames are taken."""
