package fault

// Reason says why a look-up missed, or why something was rejected. The set is
// closed (SPEC R1). Each room counts the reasons that can arise in it.
type Reason string

// The reasons of SPEC R1.
const (
	Absent          Reason = "absent"
	Disabled        Reason = "disabled"
	KeyRefused      Reason = "key_refused"
	Format          Reason = "format"
	Truncated       Reason = "truncated"
	Trailing        Reason = "trailing"
	TooLarge        Reason = "too_large"
	Checksum        Reason = "checksum"
	KeyCollision    Reason = "key_collision"
	Outdated        Reason = "outdated"
	DeviceMismatch  Reason = "device_mismatch"
	Incompatible    Reason = "incompatible"
	SourceChanged   Reason = "source_changed"
	DriverHeader    Reason = "driver_header"
	DriverRefused   Reason = "driver_refused"
	Quirk           Reason = "quirk"
	Unsigned        Reason = "unsigned"
	UntrustedSigner Reason = "untrusted_signer"
	Revoked         Reason = "revoked"
	Quarantined     Reason = "quarantined"
	Busy            Reason = "busy"
	Degraded        Reason = "degraded"
)

// Reasons gives the whole set in the order of SPEC R1.
func Reasons() []Reason {
	return []Reason{Absent, Disabled, KeyRefused, Format, Truncated, Trailing, TooLarge, Checksum, KeyCollision,
		Outdated, DeviceMismatch, Incompatible, SourceChanged, DriverHeader, DriverRefused, Quirk, Unsigned,
		UntrustedSigner, Revoked, Quarantined, Busy, Degraded}
}
