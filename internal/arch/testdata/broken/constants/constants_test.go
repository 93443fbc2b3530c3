package constants_test

import (
	"testing"

	"github.com/kiln-cache/kiln/constants"
)

func TestOffer(t *testing.T) { new(constants.Cache).Offer() }

func ExampleCache() { new(constants.Cache).Shown() }
