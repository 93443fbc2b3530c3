package advice

// Looked is how many requests the recorder has looked at for its window, and counted.
func (r *Recorder) Looked() (looked, counted int) { return r.looked, r.counted }
