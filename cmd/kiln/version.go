package main

import (
	"context"
	"runtime/debug"
)

// versionOf is Version with the commit that the command was built from, as far as
// the build knows it: a build without version control, or of the module as others
// download it, does not.
func versionOf(info *debug.BuildInfo) string {
	said := Version
	if info == nil {
		return said
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if commit := settings["vcs.revision"]; commit != "" {
		said += " " + commit[:min(12, len(commit))]
		if settings["vcs.modified"] == "true" {
			said += " modified"
		}
	}
	return said
}

// buildInfo is what the build knows.
var buildInfo = debug.ReadBuildInfo

func versionCommand(_ context.Context, c *call) error {
	if err := c.begin(0); err != nil {
		return err
	}
	info, _ := buildInfo()
	said := versionOf(info)
	return c.say(map[string]string{"version": said}, "%s", said)
}
