package env

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Row is one setting as kiln env shows it.
type Row struct {
	Name    string   `json:"name"`              // the variable it was read from, else the newest name
	Value   string   `json:"value"`             // in force, in the variable's own grammar
	Source  Source   `json:"source"`            // of the value
	Default string   `json:"default"`           // in the same grammar
	Help    string   `json:"help"`              // what it is, and what it may be
	Also    []string `json:"also,omitempty"`    // other names that are read
	Refused []string `json:"refused,omitempty"` // why entries were not taken
	Nearest string   `json:"nearest,omitempty"` // of a Stray: the name that may be meant
}

// Table gives every setting in a fixed order.
func Table(s Settings) []Row {
	initial := Read(func(string) (string, bool) { return "", false })
	rows := make([]Row, 0, len(variables))
	for _, v := range variables {
		value, source, name := v.show(&s)
		before, _, _ := v.show(&initial)
		if name == "" {
			name = v.names[0]
		}
		row := Row{Name: name, Value: value, Source: source, Default: before, Help: v.help}
		for _, known := range v.names {
			if known != name {
				row.Also = append(row.Also, known)
			}
			for _, r := range s.Refusals {
				if r.Name == known {
					row.Refused = append(row.Refused, r.String())
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Print writes rows as a table for people, one setting per line, and below the
// table what was refused.
func Print(w io.Writer, rows []Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVALUE\tSOURCE\tDEFAULT\tHELP")
	for _, r := range rows {
		help := r.Help
		if len(r.Also) > 0 {
			help += " (also read: " + strings.Join(r.Also, ", ") + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", cell(r.Name), cell(r.Value), r.Source, cell(r.Default), help)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		for _, why := range r.Refused {
			if _, err := fmt.Fprintf(w, "refused: %s\n", why); err != nil {
				return err
			}
		}
	}
	return nil
}

// cell shows an empty value, and quotes one that would break the table.
func cell(text string) string {
	if text == "" {
		return "-"
	}
	if quoted := fmt.Sprintf("%q", text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}
