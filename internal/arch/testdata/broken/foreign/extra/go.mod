module example.test/extra

go 1.26.0
