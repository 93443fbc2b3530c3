package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionNamesItsCommit(t *testing.T) {
	of := func(settings ...string) *debug.BuildInfo {
		info := new(debug.BuildInfo)
		for i := 0; i < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return info
	}
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{nil, Version},
		{of("GOOS", "linux"), Version},
		{of("vcs.revision", "0123456789abcdef", "vcs.modified", "false"), Version + " 0123456789ab"},
		{of("vcs.revision", "0123456789abcdef", "vcs.modified", "true"), Version + " 0123456789ab modified"},
		{of("vcs.revision", "0123"), Version + " 0123"},
	} {
		if got := versionOf(c.info); got != c.want {
			t.Errorf("versionOf(%v) = %q, want %q", c.info, got, c.want)
		}
	}
	defer func(before func() (*debug.BuildInfo, bool)) { buildInfo = before }(buildInfo)
	buildInfo = func() (*debug.BuildInfo, bool) { return of("vcs.revision", "0123456789abcdef"), true }
	if said := done(t, "version"); said != Version+" 0123456789ab\n" {
		t.Errorf("kiln version says %q", said)
	}
}
